// isobar_wordpiece_filter VOCABULARY: prints the tokens of each line of stdin. For
// tests/exec/data/wordpiece_peer_test.py.

#include "exec/data/wordpiece.hpp"

#include <iostream>
#include <string>

int main(int argc, char** argv)
{
  if (argc != 2) return 2;
  const isobar::exec::WordPiece pieces(argv[1]);
  for (std::string line; std::getline(std::cin, line);) {
    for (const auto token : pieces.encode(line)) std::cout << token << ' ';
    std::cout << '\n';
  }
}
