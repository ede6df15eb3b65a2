"""The page that shows runs: live, served to this machine only (`laser dashboard`), or frozen into one file (`laser report`).

`subject` is a run directory as it is shown, `panels` and `facts` make data of it, `comparison` puts several side by side, `report` freezes
the page with these data. `runs` reads logs on while they grow, `security` decides who may see them, and `server` puts that together.
"""
