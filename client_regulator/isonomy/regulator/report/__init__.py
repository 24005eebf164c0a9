"""A run's report for people: report.html and the three signed files; reports beside each other.

The numbers come from common/report; this room only words, draws and writes them. The commands enter
through `reporting.write_report`, and through `collection`, `diff`, `history` and `spreadsheet` for
reports that exist.
"""
