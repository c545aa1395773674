"""What it takes to run kdir: local servers, the demo, units, images and charts; no kdir logic."""
