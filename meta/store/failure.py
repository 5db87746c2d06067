"""The error that is raised where a database cannot be read or written."""

from tvm_scan.errors import ScanError


class RecordError(ScanError):
    """A database of records cannot be read or written; nothing that was in it is lost."""
