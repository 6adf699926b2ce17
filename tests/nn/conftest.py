"""This folder is on the path, so that the tests of devices below it find `random_blocks`."""
