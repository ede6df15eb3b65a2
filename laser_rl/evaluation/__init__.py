"""How good an agent is: playing episodes, statistics of their returns, and videos."""
