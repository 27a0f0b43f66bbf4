"""Settings of a flow: from YAML to frozen, checked objects. A mistake is one line."""
