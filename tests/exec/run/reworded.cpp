// Linked into isobar-exec for tests.cli.rewording_test: says of every failure something else, at random.

#include "core/failure.hpp"

#include <array>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>

namespace {

/// Words at random, among them what failures of other kinds say. ISOBAR_REWORDING is the seed.
std::string something_else(const std::string& text)
{
  constexpr std::array words = {"is gone",
                                "out of memory",
                                "deadline passed",
                                "connection closed by the peer",
                                "cancelled",
                                "died of signal",
                                "did not answer",
                                "no sign of life",
                                "rank 0 (a): ",
                                "rank 1 (b) failed: ",
                                "CUDA error",
                                "all ranks are alive",
                                "interrupted",
                                "rank 2: ",
                                "green",
                                "7",
                                "cannot write",
                                "; ",
                                "x",
                                "ß"};
  const char* seed = std::getenv("ISOBAR_REWORDING");
  std::mt19937_64 random(std::hash<std::string>()(text + (seed != nullptr ? seed : "")));
  std::uniform_int_distribution<std::size_t> word(0, words.size() - 1);
  std::string said = "reworded:";
  for (std::size_t count = word(random); count > 0; --count) said.append(" ").append(words.at(word(random)));
  return said;
}

const bool rewords = (isobar::reword_failures(something_else), true);

}  // namespace
