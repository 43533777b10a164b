"""`python -m kvcast`: the same as the `kvcast` command."""

from kvcast.cli import main

raise SystemExit(main())
