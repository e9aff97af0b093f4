# a is shared with others
PERIODICITY 10.0
0.0 1.0
4.0 0.5
