"""The queue: jobs that wait, the devices they share, and the policies that decide which job starts where and when."""
