"""`python -m fbuf` is the command `fbuf`."""

import sys

from fbuf.command.main import main

sys.exit(main())
