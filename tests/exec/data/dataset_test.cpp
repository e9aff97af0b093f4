#include "exec/data/dataset.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <sys/stat.h>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace isobar::exec::dataset_test {
namespace {

using testing::ElementsAre;
using testing::ThrowsMessage;
using testing_support::TemporaryFolder;

Workload gpt_of(std::uint64_t sequence)
{
  return workload_from_text(
      fmt::format("{{model: gpt, layers: 1, hidden: 4, heads: 1, vocabulary: 1000, sequence: {}}}", sequence),
      "gpt.yaml");
}

Workload bert_of(std::uint64_t sequence, std::uint64_t vocabulary = 10)
{
  return workload_from_text(
      fmt::format("{{model: bert, encoders: 1, hidden: 4, heads: 1, intermediate: 4, vocabulary: {}, "
                  "positions: 64, classes: 3, sequence: {}}}",
                  vocabulary, sequence),
      "bert.yaml");
}

/// Tokens 0, 1, … in nanoGPT's format: each token is its own position.
std::filesystem::path write_tokens(const TemporaryFolder& folder, std::uint64_t count)
{
  std::string bytes;
  for (std::uint64_t token = 0; token < count; ++token) {
    bytes += static_cast<char>(token & 0xFFU);
    bytes += static_cast<char>(token >> 8U);
  }
  return folder.write("tokens.bin", bytes);
}

std::unique_ptr<Dataset> tokens_of(const TemporaryFolder& folder, std::uint64_t count, std::uint64_t sequence)
{
  return open_datasets({.train = write_tokens(folder, count), .evaluation = "", .vocabulary = ""}, gpt_of(sequence))
      .train;
}

RC_GTEST_PROP(Tokens, OfAnEpochAreWindowsThatDoNotOverlapFromARandomStart, (std::uint64_t seed))
{
  const auto sequence = *rc::gen::inRange<std::uint64_t>(1, 20);
  const auto count = *rc::gen::inRange<std::uint64_t>(sequence + 1, 1000);
  const auto epoch = *rc::gen::inRange<std::uint64_t>(0, 1'000'000);
  const TemporaryFolder folder;
  const auto data = tokens_of(folder, count, sequence);
  const auto batch = data->batch(seed, epoch * data->samples(), data->samples());

  RC_ASSERT(batch.tokens.size() == data->samples() * sequence);
  RC_ASSERT(batch.mask.empty());
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) RC_ASSERT(batch.labels[i] == batch.tokens[i] + 1);
  auto sorted = batch.tokens;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 1; i < sorted.size(); ++i) RC_ASSERT(sorted[i] == sorted[i - 1] + 1);
  RC_ASSERT(sorted.front() < static_cast<std::int64_t>(sequence));
  RC_ASSERT(count - sorted.size() <= 2 * sequence);
}

RC_GTEST_PROP(Tokens, OfAnEvaluationArePredictedOnceEach, (std::uint64_t seed))
{
  const auto sequence = *rc::gen::inRange<std::uint64_t>(1, 20);
  const auto count = *rc::gen::inRange<std::uint64_t>(sequence + 1, 1000);
  const TemporaryFolder folder;
  const auto data = tokens_of(folder, count, sequence);
  // The last two samples are padding.
  const auto batch = data->evaluation_batch(0, data->evaluation_samples() + 2);
  std::vector<std::int64_t> labels;
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    if (batch.labels[i] == ignored_label) continue;
    RC_ASSERT(batch.tokens[i] + 1 == batch.labels[i]);
    labels.push_back(batch.labels[i]);
  }
  RC_ASSERT(labels.size() == count - 1);
  for (std::size_t i = 0; i < labels.size(); ++i) RC_ASSERT(labels[i] == static_cast<std::int64_t>(i) + 1);
  RC_ASSERT(batch.labels.size() == (data->evaluation_samples() + 2) * sequence);
  static_cast<void>(seed);
}

RC_GTEST_PROP(Tokens, FollowFromThePositionAlone, (std::uint64_t seed))
{
  const auto first = *rc::gen::inRange<std::uint64_t>(0, 500);
  const auto count = *rc::gen::inRange<std::uint64_t>(1, 50);
  const TemporaryFolder folder;
  const auto data = tokens_of(folder, 300, 7);
  const auto together = data->batch(seed, first, count);
  std::vector<std::int64_t> one_by_one;
  for (std::uint64_t k = first; k < first + count; ++k) {
    const auto sample = data->batch(seed, k, 1);
    one_by_one.insert(one_by_one.end(), sample.tokens.begin(), sample.tokens.end());
  }
  RC_ASSERT(together.tokens == one_by_one);
}

TEST(Tokens, OfAnotherEpochBeginElsewhereInAnotherOrder)
{
  const TemporaryFolder folder;
  const auto data = tokens_of(folder, 1000, 16);
  std::map<std::int64_t, int> starts;
  for (std::uint64_t epoch = 0; epoch < 320; ++epoch) {
    const auto tokens = data->batch(5, epoch * data->samples(), data->samples()).tokens;
    ++starts[*std::min_element(tokens.begin(), tokens.end())];
  }
  ASSERT_EQ(starts.size(), 16U);
  for (const auto& [start, times] : starts) EXPECT_GT(times, 5) << start;
}

TEST(Tokens, NeedFillOnlyOneSample)
{
  const TemporaryFolder folder;
  const auto data = tokens_of(folder, 5, 4);
  EXPECT_EQ(data->samples(), 1U);
  EXPECT_THAT(data->batch(1, 7, 1).tokens, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT([&] { tokens_of(folder, 4, 4); },
              ThrowsMessage<InputError>(testing::EndsWith(": has 4 tokens; a sample needs 5, the sequence plus one")));
}

TEST(Tokens, AreReadByManyThreadsAtOnce)
{
  const TemporaryFolder folder;
  const auto data = tokens_of(folder, 1000, 16);
  const auto expected = data->batch(1, 0, 200).tokens;
  std::vector<std::vector<std::int64_t>> found(4);
  {
    std::vector<std::jthread> threads;
    for (auto& tokens : found) threads.emplace_back([&] { tokens = data->batch(1, 0, 200).tokens; });
  }
  for (const auto& tokens : found) EXPECT_EQ(tokens, expected);
}

/// MNLI pairs with a vocabulary of letters.
class Pairs : public testing::Test {
 protected:
  Datasets open(const std::string& pairs, const Workload& workload)
  {
    const std::string file = folder_.write("pairs.tsv", "sentence1\tsentence2\tgold_label\n" + pairs);
    return open_datasets({.train = file, .evaluation = file, .vocabulary = vocabulary_}, workload);
  }

  TemporaryFolder folder_;
  std::string vocabulary_ = folder_.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\nc\nd\n");
};

TEST_F(Pairs, AreSetBetweenSeparatorsAndPadded)
{
  const auto batch = open("a b\tc\tneutral\n", bert_of(8)).train->batch(1, 0, 1);
  EXPECT_THAT(batch.tokens, ElementsAre(2, 4, 5, 3, 6, 3, 0, 0));
  EXPECT_THAT(batch.segments, ElementsAre(0, 0, 0, 0, 1, 1, 0, 0));
  EXPECT_THAT(batch.mask, ElementsAre(1, 1, 1, 1, 1, 1, 0, 0));
  EXPECT_THAT(batch.labels, ElementsAre(1));
  EXPECT_EQ(batch.samples, 1U);
  EXPECT_EQ(batch.sequence, 8U);
}

TEST_F(Pairs, LoseTheEndOfTheLongerSentence)
{
  // As google-research/bert's _truncate_seq_pair.
  const auto tokens = [&](const std::string& premise, const std::string& hypothesis, std::uint64_t sequence) {
    return open(premise + "\t" + hypothesis + "\tneutral\n", bert_of(sequence)).train->batch(1, 0, 1).tokens;
  };
  EXPECT_THAT(tokens("a b c d a", "d", 7), ElementsAre(2, 4, 5, 6, 3, 7, 3));
  EXPECT_THAT(tokens("d", "a b c d a", 7), ElementsAre(2, 7, 3, 4, 5, 6, 3));
  EXPECT_THAT(tokens("a b c", "b c d", 8), ElementsAre(2, 4, 5, 6, 3, 5, 6, 3));
  EXPECT_THAT(tokens("a b c", "b c d", 4), ElementsAre(2, 4, 3, 3));
  EXPECT_THAT(tokens("", "", 4), ElementsAre(2, 3, 3, 0));
}

TEST_F(Pairs, ComeOnceAnEpochInAnotherOrder)
{
  const auto data = open("a\ta\tneutral\nb\tb\tentailment\nc\tc\tcontradiction\nd\td\tneutral\n", bert_of(5)).train;
  ASSERT_EQ(data->samples(), 4U);
  std::vector<std::vector<std::int64_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    const auto batch = data->batch(3, epoch * 4, 4);
    std::vector<std::int64_t> order;
    for (std::size_t i = 0; i < 4; ++i) order.push_back(batch.tokens[i * 5 + 1]);
    orders.push_back(order);
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(4, 5, 6, 7));
  }
  EXPECT_NE(std::adjacent_find(orders.begin(), orders.end(), std::not_equal_to<>()), orders.end());
}

TEST_F(Pairs, OfAnEvaluationKeepTheOrderOfTheFile)
{
  const auto data = open("a\ta\tneutral\nb\tb\tentailment\n", bert_of(5)).evaluation;
  EXPECT_EQ(data->evaluation_samples(), 2U);
  const auto batch = data->evaluation_batch(0, 3);
  EXPECT_THAT(batch.tokens, ElementsAre(2, 4, 3, 4, 3, 2, 5, 3, 5, 3, 2, 5, 3, 5, 3));
  EXPECT_THAT(batch.labels, ElementsAre(1, 0, ignored_label));
}

TEST_F(Pairs, FitTheWorkload)
{
  EXPECT_THAT([&] { open("a\ta\tneutral\n", bert_of(5, 7)); },
              ThrowsMessage<InputError>(vocabulary_ + ": has 8 pieces; the vocabulary of workload bert has 7"));
  EXPECT_THAT([&] { open("a\ta\tneutral\n", bert_of(3)); },
              ThrowsMessage<InputError>(
                  "--data: a pair of sentences needs a sequence of more than 3 tokens; workload bert has 3"));
  const auto two_classes = workload_from_text(
      "{model: bert, encoders: 1, hidden: 4, heads: 1, intermediate: 4, vocabulary: 9, positions: 8, classes: 2, "
      "sequence: 8}",
      "two.yaml");
  EXPECT_THAT([&] { open("a\ta\tneutral\n", two_classes); },
              ThrowsMessage<InputError>("--data: MNLI has 3 classes; workload two has 2"));
}

TEST(Datasets, OfTheExamplesFitTheirWorkload)
{
  const std::filesystem::path folder = std::filesystem::path(ISOBAR_SOURCE_DIR) / "examples/mnli";
  const auto data = open_datasets(
      {.train = folder / "train.tsv", .evaluation = folder / "dev.tsv", .vocabulary = folder / "vocab.txt"},
      read_workload(folder / "bert.yaml"));
  EXPECT_EQ(data.train->samples(), 50U);
  EXPECT_EQ(data.evaluation->evaluation_samples(), 20U);
  for (const auto& batch : {data.train->evaluation_batch(0, 50), data.evaluation->evaluation_batch(0, 20)}) {
    EXPECT_EQ(std::count(batch.tokens.begin(), batch.tokens.end(), 1), 0) << "every piece is known";
    for (std::size_t end = 63; end < batch.mask.size(); end += 64)
      EXPECT_EQ(batch.mask[end], 0) << "no pair is truncated";
    for (std::int64_t label = 0; label < 3; ++label) {
      EXPECT_GE(std::count(batch.labels.begin(), batch.labels.end(), label), 6);
    }
  }
}

TEST(Datasets, HaveTheTypeOfNumbersThatIsGiven)
{
  const TemporaryFolder folder;
  const std::string file = folder.write("tokens", std::string("\x05\0\0\0\x06\0\0\0\x07\0\0\0", 12));
  const auto data = open_datasets({.train = file, .evaluation = file, .vocabulary = "", .type = "uint32"}, gpt_of(2));
  EXPECT_THAT(data.train->batch(1, 0, 1).tokens, ElementsAre(5, 6));
  EXPECT_THAT(data.evaluation->evaluation_batch(0, 1).labels, ElementsAre(6, 7));
}

TEST(Datasets, MatchTheModelOfTheWorkload)
{
  EXPECT_THAT(
      [] { open_datasets({.train = "pairs.tsv", .evaluation = "", .vocabulary = ""}, bert_of(8)); },
      ThrowsMessage<InputError>("--data: sentences need --vocabulary FILE, the word pieces that the model knows"));
  EXPECT_THAT([] { open_datasets({.train = "", .evaluation = "", .vocabulary = "vocab.txt"}, gpt_of(8)); },
              ThrowsMessage<InputError>("--vocabulary: goes with a bert workload only"));
  EXPECT_THAT([] { open_datasets({.train = "", .evaluation = "", .vocabulary = "", .type = "uint32"}, bert_of(8)); },
              ThrowsMessage<InputError>("--data-type: goes with a gpt or llama workload only"));
  EXPECT_THAT([] { open_datasets({.train = "", .evaluation = "", .vocabulary = "", .type = "u32"}, gpt_of(8)); },
              ThrowsMessage<InputError>("--data-type: \"u32\" is not one of uint16, uint32, int32, int64"));
  const auto resnet = workload_from_text("{model: resnet, depth: 50}", "resnet.yaml");
  EXPECT_THAT([&] { open_datasets({.train = "", .evaluation = "x", .vocabulary = ""}, resnet); },
              ThrowsMessage<InputError>(
                  "--evaluate: workload resnet takes no data, only bert, gpt and llama do; leave the option out"));
  const auto none = open_datasets({}, resnet);
  EXPECT_EQ(none.train, nullptr);
  EXPECT_EQ(none.evaluation, nullptr);
}

TEST(DataFingerprint, OfUpTo256MiBIsThatOfTheContent)
{
  const TemporaryFolder folder;
  for (const std::size_t size : {0U, 1U, 65'536U, 200'001U}) {
    std::string content(size, '\0');
    for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i * i % 251);
    EXPECT_EQ(data_fingerprint(folder.write("data", content)), fingerprint(content)) << size;
  }
}

TEST(DataFingerprint, OfALargeFileIsThatOfItsSizeAndOfPieces)
{
  const TemporaryFolder folder;
  const auto file = folder.write("data", "");
  constexpr std::uint64_t size = 257ULL << 20U;
  std::filesystem::resize_file(file, size);
  const auto of_zeros = data_fingerprint(file);
  const auto with_byte_at = [&](std::uint64_t place) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(place));
    stream.put('x').flush();
    auto with_byte = data_fingerprint(file);
    stream.seekp(static_cast<std::streamoff>(place));
    stream.put('\0').flush();
    return with_byte;
  };
  EXPECT_NE(with_byte_at(0), of_zeros);
  EXPECT_NE(with_byte_at(size - (std::uint64_t{1} << 15U)), of_zeros);
  EXPECT_EQ(with_byte_at(65'536 + 100), of_zeros) << "pieces begin every 65,792 bytes and have 65,536 bytes";
  std::filesystem::resize_file(file, size + 1);
  EXPECT_NE(data_fingerprint(file), of_zeros);
}

TEST(DataFingerprint, NeedsARegularFile)
{
  const TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& place : {pipe, std::filesystem::path("/dev/zero")}) {
    EXPECT_THAT([&] { data_fingerprint(place); },
                ThrowsMessage<InputError>(place.string() + ": is a device or pipe; name a file"));
  }
  EXPECT_THAT([&] { data_fingerprint(folder.path()); },
              ThrowsMessage<InputError>(testing::HasSubstr("is a directory")));
}

}  // namespace
}  // namespace isobar::exec::dataset_test
