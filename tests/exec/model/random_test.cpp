#include "exec/model/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace isobar::exec::random_test {
namespace {

at::Tensor drawn(RandomStream stream, std::initializer_list<std::uint64_t> words)
{
  return at::randint(1'000'000, {20}, generator_for(stream, words, "cpu"), at::kLong);
}

TEST(Mixed, IsSplitmix64OfOneWord)
{
  // The first number of its reference implementation (Vigna, prng.di.unimi.it/splitmix64.c) from 0.
  EXPECT_EQ(mixed({0}), 0xe220a8397b1dcdafU);
}

TEST(Mixed, DependsOnTheOrderAndNumberOfWords)
{
  EXPECT_NE(mixed({1, 2}), mixed({2, 1}));
  EXPECT_NE(mixed({1, 0}), mixed({0, 1}));
  EXPECT_NE(mixed({0}), mixed({0, 0}));
}

TEST(GeneratorFor, DependsOnStreamAndWordsOnly)
{
  EXPECT_TRUE(at::equal(drawn(RandomStream::Tokens, {1, 2}), drawn(RandomStream::Tokens, {1, 2})));
  EXPECT_FALSE(at::equal(drawn(RandomStream::Tokens, {1, 2}), drawn(RandomStream::Tokens, {1, 3})));
  EXPECT_FALSE(at::equal(drawn(RandomStream::Tokens, {1, 2}), drawn(RandomStream::Dropout, {1, 2})));
}

TEST(GeneratorFor, LeavesTheGlobalGeneratorAlone)
{
  const auto before = at::globalContext().defaultGenerator(at::kCPU).get_state();
  drawn(RandomStream::Tokens, {1, 2});
  EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), before));
}

}  // namespace
}  // namespace isobar::exec::random_test
