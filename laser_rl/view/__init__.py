"""The page that shows runs: live, served to this machine only (`laser dashboard`), or frozen into one file (`laser report`).

`runs` reads run directories, `panels` and `facts` make data of them, `report` freezes the page with these data and puts several runs side
by side. `security` decides who may see the live page, `server` serves it, and `command` starts it.
"""
