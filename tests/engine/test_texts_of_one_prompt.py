"""Several texts of one prompt that end in the same step."""

from kit.text_models import saying
from kvcast.engine import Engine


def test_every_text_is_told_to_its_end():
    with Engine(saying("world")) as engine:
        job = engine.submit("u.hello!a.", n=3, temperature=0.01, max_new_tokens=20)
        deltas = list(job)
        for index in range(3):
            own = [delta for delta in deltas if delta.index == index]
            assert "".join(delta.text for delta in own) == "world"
            assert [delta.finish_reason for delta in own if delta.finish_reason] == ["stop"]
        assert [text.text for text in job.result()] == ["world"] * 3
        assert engine.status().finished == {"stop": 1}
