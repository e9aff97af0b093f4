% turbo
LOOPAFTER 5
1.0 3.0
2 1
