"""The models that huggingface_hub's cache holds: their folders, and their removal."""

from pathlib import Path

from kvcast.checkpoints.hub import snapshot_in
from kvcast.errors import KvcastError


def cached_repositories() -> dict[str, Path]:
    """Return the snapshots of downloaded models by hub id, the newest first.

    Repositories without a finished snapshot are left out.
    """
    folder = _folder()
    if not folder.is_dir():
        return {}
    places = {}
    for place in sorted(folder.glob("models--*"), key=lambda path: -path.stat().st_mtime):
        name = place.name.removeprefix("models--").replace("--", "/")
        try:
            places[name] = snapshot_in(place)
        except KvcastError:
            continue
    return places


def remove_repository(name: str) -> int:
    """Remove all revisions of a downloaded model; return the bytes that are free again."""
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir(_folder())
    models = [repo for repo in cache.repos if (repo.repo_type, repo.repo_id) == ("model", name)]
    strategy = cache.delete_revisions(*(r.commit_hash for repo in models for r in repo.revisions))
    strategy.execute()
    return strategy.expected_freed_size


def _folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
