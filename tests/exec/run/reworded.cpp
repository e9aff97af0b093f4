// Linked into isobar-exec for tests.cli.rewording_test: replaces the text of every failure by random words.

#include "core/failure.hpp"

#include <array>
#include <functional>
#include <random>
#include <string>

namespace {

/// Random words, other ones for each text, including phrases of other kinds of failures.
std::string reworded(const std::string& text)
{
  constexpr std::array words = {"is gone",
                                "out of memory",
                                "deadline passed",
                                "connection closed by the peer",
                                "cancelled",
                                "died of signal",
                                "did not answer",
                                "no heartbeat",
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
  std::mt19937_64 random(std::hash<std::string>()(text));
  std::uniform_int_distribution<std::size_t> word(0, words.size() - 1);
  std::string result = "reworded:";
  for (std::size_t count = word(random); count > 0; --count) result.append(" ").append(words.at(word(random)));
  return result;
}

const bool rewords = (isobar::reword_failures(reworded), true);

}  // namespace
