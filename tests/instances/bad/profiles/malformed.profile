# load of the machine
0.0 1.0
5.0 half
