"""The simulated world: ports, the disk behind them, and the actors that use them."""
