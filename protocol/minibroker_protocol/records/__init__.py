"""Record batches of magic 2: header, checksum, records, compression, control records and sequence numbers."""

from .batch import *
from .build import *
from .compression import *
from .control import *
from .old_format import *
from .pace import *
from .sequences import *
from .varints import *
from .walk import *
