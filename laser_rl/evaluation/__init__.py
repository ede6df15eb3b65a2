"""How good an agent is: playing episodes, and statistics of their returns."""
