"""Measurements that are run by hand, and the tests that they run at all."""
