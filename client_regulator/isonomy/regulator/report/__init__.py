"""A run's report for people: report.html and the three signed files.

The numbers come from common/report; this room only words, draws and writes them. The commands enter
through `reporting.write_report`.
"""
