"""One run: its ports and files (context), its claim (fencing), its ledger (recording), its start after a stop (resume),
its progress (status), and the objects that other runs deleted (elsewhere).
"""
