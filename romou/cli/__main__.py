from romou.cli import run_main

run_main()
