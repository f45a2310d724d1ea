"""Mark what goes: what lies there (inputs) less what names it, compared as sets, and less what holds keep (holding)."""
