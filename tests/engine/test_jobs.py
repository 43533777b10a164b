"""What a job's consumer gets, in whatever order the engine's thread and its own take turns."""

import asyncio
import random
import threading
from typing import Any

from kvcast.engine.jobs import Job, wake


def made() -> Job[int, str]:
    return Job(lambda job: None)


def test_a_task_that_is_woken_for_what_it_has_waits_on():
    job = made()

    async def consume() -> list[int]:
        job.put(1)
        assert await job.arrived() == [1]
        waiting = asyncio.ensure_future(job.arrived())
        await asyncio.sleep(0)
        wake([job])  # for the item that was taken before
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        job.put(2)
        job.finish("over")
        wake([job])
        assert await waiting == [2]
        return await job.arrived()

    assert asyncio.run(asyncio.wait_for(consume(), 60)) == []


def test_items_before_the_end_are_taken_before_the_end():
    job = made()
    job.put(1)
    job.finish("over")

    async def consume() -> list[list[int]]:
        return [await job.arrived(), await job.arrived()]

    assert asyncio.run(consume()) == [[1], []]


def test_no_item_is_lost_between_threads():
    rng = random.Random(0)

    def produce(jobs: list[Job[int, str]]) -> None:
        for item in range(300):
            for job in jobs:
                job.put(item)
                if item == 299:
                    job.finish("over")
            wake(jobs)
            if rng.random() < 0.3:
                threading.Event().wait(0.0002)

    async def consume(job: Job[int, str]) -> list[Any]:
        return [item async for item in job]

    async def all_of_them(jobs: list[Job[int, str]]) -> list[list[int]]:
        return await asyncio.gather(*map(consume, jobs))

    for _ in range(5):
        jobs = [made() for _ in range(3)]
        producer = threading.Thread(target=produce, args=(jobs,))
        producer.start()
        assert asyncio.run(asyncio.wait_for(all_of_them(jobs), 60)) == [list(range(300))] * 3
        producer.join()
