"""A page that shows runs while they go on: a process of its own, which only reads their files and listens on this machine only.

`tail` reads the log on, `table` and `history` keep what charts need of it in a bounded memory, `runs` knows the directories, `panels` and
`facts` say what is shown, `security` decides who may see it, `stream` tells pages that there is news, `server` puts it together.
"""
