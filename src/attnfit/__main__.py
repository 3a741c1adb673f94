from attnfit.cli import main

main()
