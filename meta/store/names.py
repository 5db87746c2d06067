"""Names of the files of a database: the first two are those of TVM's ``JSONDatabase``."""

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
MANIFEST = "manifest.json"
