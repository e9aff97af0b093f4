#include "exec/files/checkpoint.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "exec/files/checkpoint_manifest.hpp"
#include "tests/exec/files/stored_tensors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace isobar::exec::checkpoint_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using testing_support::TemporaryFolder;
namespace fs = std::filesystem;

constexpr std::size_t layers = 12;

float value_of(std::size_t layer, std::uint64_t step)
{
  return static_cast<float>(100 * step + layer);
}

/// The snapshot of stage `stage` of `stages` at `step`: one tensor per layer, layers split evenly.
StageSnapshot snapshot_of(std::uint64_t step, std::size_t stage, std::size_t stages)
{
  StageSnapshot snapshot{.step = step,
                         .part = {.stage = stage, .stages = stages},
                         .first_layer = layers * stage / stages,
                         .last_layer = layers * (stage + 1) / stages - 1,
                         .run = R"({"seed": 3, "workload": "0123"})",
                         .tensors = {}};
  for (std::size_t layer = snapshot.first_layer; layer <= snapshot.last_layer; ++layer) {
    snapshot.tensors.push_back(tensor_of(checkpoint_name(layer, "weight"), {1, 2}, {value_of(layer, step), -1}));
  }
  return snapshot;
}

class Checkpoints : public testing::Test {
 protected:
  void write(std::uint64_t step, std::size_t stages) const
  {
    for (std::size_t stage = 0; stage < stages; ++stage) store_.write(snapshot_of(step, stage, stages));
  }
  fs::path file(std::uint64_t step, const std::string& name) const { return store_.folder_of(step) / name; }
  void replace(const fs::path& path, const std::string& from, const std::string& to) const
  {
    auto text = read_file(path);
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file_atomically(path, text.replace(at, from.size(), to));
  }
  void expect_refusal(const std::string& message) const
  {
    EXPECT_THAT([&] { store_.open(10); },
                ThrowsMessage<InputError>(AllOf(HasSubstr("step-00000010"), HasSubstr(message))));
    const auto newest = store_.newest_complete();
    EXPECT_EQ(newest.step, std::nullopt);
    EXPECT_THAT(newest.skipped, ElementsAre(HasSubstr(message)));
  }

  TemporaryFolder folder_;
  CheckpointStore store_{folder_.path() / "checkpoints"};
};

TEST_F(Checkpoints, OfAnySplitHoldTheSameTensors)
{
  EXPECT_EQ(store_.newest_complete().step, std::nullopt);
  EXPECT_THAT(store_.steps(), IsEmpty());
  std::uint64_t step = 0;
  for (const std::size_t stages : {3, 2, 4, 1, 12}) {
    write(step, stages);
    const auto newest = store_.newest_complete();
    ASSERT_EQ(newest.step, step);
    EXPECT_THAT(newest.skipped, IsEmpty());
    const auto checkpoint = store_.open(step);
    EXPECT_EQ(checkpoint.step(), step);
    EXPECT_EQ(checkpoint.stages(), stages);
    EXPECT_EQ(checkpoint.layers(), layers);
    EXPECT_EQ(checkpoint.run(), R"({"seed":3,"workload":"0123"})");
    EXPECT_EQ(checkpoint.names().size(), layers);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const auto tensor = checkpoint.read(checkpoint_name(layer, "weight"));
      EXPECT_EQ(floats_of(tensor), (std::vector{value_of(layer, step), -1.0F}));
      EXPECT_THAT(tensor.facts.shape, ElementsAre(1, 2));
    }
    checkpoint.verify();
    ++step;
  }
}

TEST_F(Checkpoints, AreWrittenByAllStagesAtOnce)
{
  constexpr std::size_t stages = 3;
  std::vector<std::thread> writers;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    writers.emplace_back([this, stage] {
      AsyncCheckpointWriter writer(store_, stage == 0 ? std::optional<std::size_t>(2) : std::nullopt);
      for (std::uint64_t step = 1; step <= 20; ++step) writer.write(snapshot_of(step, stage, stages));
      writer.finish();
    });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(store_.newest_complete().step, 20U);
  store_.open(20).verify();
  store_.keep_last(2);
  EXPECT_THAT(store_.steps(), ElementsAre(19, 20));
}

TEST_F(Checkpoints, ThatAreIncompleteAreSkipped)
{
  write(10, 3);
  write(20, 3);
  fs::remove(file(20, "stage-1-of-3.json"));
  store_.write(snapshot_of(30, 2, 3));
  fs::create_directories(store_.folder_of(40));
  fs::create_directories(folder_.path() / "checkpoints" / "step-50");  // not ours
  const auto newest = store_.newest_complete();
  EXPECT_EQ(newest.step, 10U);
  EXPECT_THAT(newest.skipped,
              ElementsAre(HasSubstr("step-00000040: has no part of a manifest"),
                          HasSubstr("step-00000030: has 1 of 3 manifest parts; stage-0-of-3.json is missing"),
                          HasSubstr("step-00000020: has 2 of 3 manifest parts; stage-1-of-3.json is missing")));
  EXPECT_THAT(store_.steps(), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT([&] { store_.open(60); }, ThrowsMessage<InputError>(HasSubstr("step-00000060: no such checkpoint")));
}

TEST_F(Checkpoints, OfAnotherNumberOfStagesAreReplaced)
{
  store_.write(snapshot_of(10, 0, 3));
  store_.write(snapshot_of(10, 1, 3));
  write(10, 2);
  EXPECT_EQ(store_.open(10).stages(), 2U);
  store_.keep_last(1);
  EXPECT_FALSE(fs::exists(file(10, "stage-0-of-3.safetensors")));
  EXPECT_EQ(store_.open(10).stages(), 2U);
}

TEST_F(Checkpoints, ThatWereHalfWrittenAreIncomplete)
{
  write(10, 3);
  // A stage that writes its part again removes its manifest first.
  fs::copy(store_.folder_of(10), folder_.path() / "before");
  fs::remove(file(10, "stage-2-of-3.json"));
  expect_refusal("has 2 of 3 manifest parts");
  fs::copy(folder_.path() / "before" / "stage-2-of-3.json", file(10, "stage-2-of-3.json"));
  store_.open(10);
  fs::rename(file(10, "stage-2-of-3.safetensors"), file(10, "stage-2-of-3.safetensors.Xy12Ab"));
  expect_refusal("stage-2-of-3.safetensors: no such file");
}

TEST_F(Checkpoints, AreRefusedWhereTheirFilesAreDamaged)
{
  write(10, 3);
  const auto path = file(10, "stage-1-of-3.safetensors");
  const auto sound = read_file(path);

  auto damaged = sound;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_file_atomically(path, damaged);
  const auto checkpoint = store_.open(10);  // only the elements differ
  EXPECT_THAT([&] { checkpoint.verify(); },
              ThrowsMessage<InputError>(
                  AllOf(HasSubstr("stage-1-of-3.safetensors: damaged: its CRC-32C is"), HasSubstr("was written"))));
  EXPECT_THAT([&] { checkpoint.read(checkpoint_name(7, "weight")); },
              ThrowsMessage<InputError>(HasSubstr(R"(tensor "layers.7.weight": damaged)")));
  EXPECT_EQ(floats_of(checkpoint.read(checkpoint_name(4, "weight"))).front(), value_of(4, 10));

  write_file_atomically(path, sound.substr(0, sound.size() - 1));
  expect_refusal("stage-1-of-3.safetensors: its tensors take 32 bytes, but the file has 31");
  write_file_atomically(path, sound);
  replace(path, "layers.5", "layers.0");
  expect_refusal("stage-1-of-3.json: tensors: differ from those in stage-1-of-3.safetensors");
}

TEST_F(Checkpoints, AreRefusedWhereTheirManifestIsWrong)
{
  const auto path = file(10, "stage-1-of-3.json");
  const auto refuse = [&](const std::string& from, const std::string& to, const std::string& message) {
    SCOPED_TRACE(to);
    write(10, 3);
    replace(path, from, to);
    expect_refusal(message);
  };
  refuse("isobar-checkpoint/1", "isobar-checkpoint/2", "schema: \"isobar-checkpoint/2\" is not isobar-checkpoint/1");
  refuse(R"("step": 10)", R"("step": 11)",
         "is of step 11, stage-1-of-3.json; its name says step 10, stage-1-of-3.json");
  refuse(R"("step": 10)", R"("step": -1)", "step: \"-1\" is not a whole number");
  refuse(R"("stages": 3)", R"("stages": 0)", "stages: \"0\" is out of range");
  refuse(R"("stage": 1)", R"("stage": 2)", "file: \"stage-1-of-3.safetensors\" is not stage-2-of-3.safetensors");
  refuse(R"("first_layer": 4)", R"("first_layer": 5)", "first_layer: is 5; the previous stages end before layer 4");
  refuse(R"("last_layer": 7)", R"("last_layer": 3)", "last_layer: \"3\" is out of range");
  refuse(R"("seed": 3)", R"("seed": 4)", "run: differs from stage 0's");
  refuse(R"("run": {)", R"("ran": {)", "run: missing");
  refuse(R"(-1-of-3.safetensors")", R"(-1-of-3.safetensors/../x")", "is not stage-1-of-3.safetensors");
  refuse(R"("size_bytes": )", R"("size_bytes": 1)", "bytes, but 1");
  refuse(R"("crc32c": ")", R"("crc32c": "g)", "is not a CRC-32C of 8 hexadecimal digits");
  refuse(R"("layers.4.weight": ")", R"("layers.4.weight": "-)", "is not a CRC-32C of 8 hexadecimal digits");
  refuse(R"("tensors": {)", R"("tensors": {},"more": {)", "more: unknown key");
  refuse("{", "", "not JSON");
  refuse("{", "[", "not JSON");
}

TEST_F(Checkpoints, AreRefusedWhereTwoStagesHoldOneTensor)
{
  auto first = snapshot_of(10, 0, 2);
  first.tensors.push_back(tensor_of(checkpoint_name(11, "weight"), {}, {0}));
  store_.write(first);
  store_.write(snapshot_of(10, 1, 2));
  expect_refusal(R"(tensor "layers.11.weight" is also in an earlier part)");
}

/// The snapshot of one of two replicas that divide the optimizer of the only stage: elements begin..end-1 of 4.
StageSnapshot half_of(std::uint64_t step, std::size_t shard, std::uint64_t begin, std::uint64_t end)
{
  StageSnapshot snapshot{.step = step,
                         .part = {.stage = 0, .stages = 1, .shard = shard, .shards = 2},
                         .first_layer = 0,
                         .last_layer = 0,
                         .run = "{}",
                         .tensors = {}};
  const auto name = checkpoint_name(0, "weight");
  if (shard == 0) snapshot.tensors.push_back(tensor_of(name, {2, 2}, {1, 2, 3, 4}));
  std::vector<float> values;
  for (std::uint64_t i = begin; i < end; ++i) values.push_back(static_cast<float>(10 * i));
  snapshot.tensors.push_back(
      tensor_of(part_name(name + ":exp_avg", TensorPart::range(begin, end, {2, 2})), {end - begin}, values));
  return snapshot;
}

TEST_F(Checkpoints, OfReplicasThatDivideAnOptimizerHoldItWhole)
{
  store_.write(half_of(10, 0, 0, 1));
  expect_refusal("has 1 of 2 manifest parts; stage-0-of-1-shard-1-of-2.json is missing");
  store_.write(half_of(10, 1, 1, 4));
  const auto checkpoint = store_.open(10);
  checkpoint.verify();
  EXPECT_EQ(checkpoint.stages(), 1U);
  EXPECT_THAT(checkpoint.names(), ElementsAre("layers.0.weight", "layers.0.weight:exp_avg"));
  const auto moments = checkpoint.read("layers.0.weight:exp_avg");
  EXPECT_THAT(moments.facts.shape, ElementsAre(2, 2));
  EXPECT_THAT(floats_of(moments), ElementsAre(0, 10, 20, 30));

  write(20, 1);
  EXPECT_EQ(store_.newest_complete().step, 20U);
  store_.write(half_of(20, 0, 0, 1));
  store_.write(half_of(20, 1, 1, 4));
  EXPECT_THAT(store_.open(20).names(), ElementsAre("layers.0.weight", "layers.0.weight:exp_avg"));
  store_.keep_last(1);
  EXPECT_THAT(store_.steps(), ElementsAre(20));
  EXPECT_FALSE(fs::exists(file(20, "stage-0-of-1.safetensors")));
  store_.open(20).verify();
}

TEST_F(Checkpoints, AreRefusedWhereSlicesDoNotMakeATensor)
{
  store_.write(half_of(10, 0, 0, 1));
  store_.write(half_of(10, 1, 2, 4));
  expect_refusal(R"(tensor "layers.0.weight:exp_avg" has 4 elements, and its slices end at element 1)");
  store_.write(half_of(10, 1, 1, 3));
  expect_refusal(R"(tensor "layers.0.weight:exp_avg" has 4 elements, and its slices end at element 3)");

  auto other = half_of(10, 1, 1, 4);
  other.tensors.front().facts.shape = {3, 1};
  store_.write(other);
  expect_refusal("has type F32 and shape [3, 1]; a slice of \"layers.0.weight:exp_avg\" has type F32 and shape [3]");

  other = half_of(10, 1, 1, 4);
  other.tensors.front().facts.name = part_name("layers.0.weight:exp_avg", TensorPart::range(1, 4, {4}));
  store_.write(other);
  expect_refusal(R"(tensor "layers.0.weight:exp_avg" is in the checkpoint in another shape)");
  other.tensors.front().facts.name = part_name("layers.0.weight", TensorPart::range(1, 4, {2, 2}));
  store_.write(other);
  expect_refusal(R"(tensor "layers.0.weight" is in the checkpoint in another shape)");
}

/// The snapshot of one of two shards that each have two columns of a matrix, and of these one of two replicas the
/// first three elements of the second moments.
StageSnapshot columns_of(std::size_t shard, const std::vector<float>& values, const std::vector<float>& moments,
                         std::uint64_t begin)
{
  StageSnapshot snapshot = half_of(10, shard, 0, 1);
  const std::uint64_t column = shard % 2 * 2;
  const TensorPart columns = {.shape = {2, 4}, .begin = column, .end = column + 2, .period = 4};
  snapshot.part.shard = shard;
  snapshot.part.shards = 4;
  snapshot.tensors.clear();
  if (!values.empty()) snapshot.tensors.push_back(tensor_of(part_name("layers.0.down", columns), {4}, values));
  const auto name =
      part_name(part_name("layers.0.down:exp_avg", columns), TensorPart::range(begin, begin + moments.size(), {4}));
  snapshot.tensors.push_back(tensor_of(name, {moments.size()}, moments));
  return snapshot;
}

TEST_F(Checkpoints, OfShardsThatDivideAMatrixByColumnsAndTheirOptimizerHoldItWhole)
{
  store_.write(columns_of(0, {1, 2, 5, 6}, {10, 20, 50}, 0));
  store_.write(columns_of(1, {3, 4, 7, 8}, {30, 40}, 0));
  store_.write(columns_of(2, {}, {60}, 3));
  store_.write(columns_of(3, {}, {70, 80}, 2));
  const auto checkpoint = store_.open(10);
  checkpoint.verify();
  EXPECT_THAT(checkpoint.names(), ElementsAre("layers.0.down", "layers.0.down:exp_avg"));
  EXPECT_THAT(floats_of(checkpoint.read("layers.0.down")), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(checkpoint.read("layers.0.down").facts.shape, ElementsAre(2, 4));
  EXPECT_THAT(floats_of(checkpoint.read("layers.0.down:exp_avg")), ElementsAre(10, 20, 30, 40, 50, 60, 70, 80));

  store_.write(columns_of(2, {}, {60, 61}, 2));
  expect_refusal(R"(tensor "layers.0.down:exp_avg[0:2:4 of 2x4]" has 4 elements, and its slices end at element 3)");
  auto narrow = columns_of(1, {3, 4, 7, 8}, {30, 40}, 0);
  narrow.tensors.front() = tensor_of("layers.0.down[2:3:4 of 2x4]", {2}, {3, 7});
  store_.write(narrow);
  expect_refusal(R"(tensor "layers.0.down" has 4 elements in each row or block, and its slices end at element 3)");
  narrow.tensors.front() = tensor_of("layers.0.down[2:3:8 of 2x4]", {1}, {3});
  store_.write(narrow);
  expect_refusal(R"(tensor "layers.0.down" is in the checkpoint in another shape)");
}

TEST_F(Checkpoints, OfAnotherRunAreNeitherCountedNorRemoved)
{
  for (std::uint64_t step = 10; step <= 50; step += 10) {
    for (const std::size_t stage : {0, 1}) {
      auto snapshot = snapshot_of(step, stage, 2);
      if (step == 20 || step == 30) snapshot.run = R"({"seed":4,"workload":"0123"})";
      store_.write(snapshot);
    }
  }
  fs::remove(file(30, "stage-0-of-2.json"));  // incomplete
  store_.keep_last(1);
  EXPECT_THAT(store_.steps(), ElementsAre(20, 30, 50));
  EXPECT_TRUE(fs::exists(file(30, "stage-1-of-2.safetensors")));
}

TEST_F(Checkpoints, AreKeptInTheRequestedNumber)
{
  for (std::uint64_t step = 10; step <= 60; step += 10) write(step, 2);
  fs::remove(file(60, "stage-0-of-2.json"));  // still being written
  fs::remove(file(40, "stage-0-of-2.json"));  // never completed
  write_file_atomically(file(50, "stage-0-of-2.safetensors.Xy12Ab"), "left by an interrupted write");
  store_.keep_last(2);
  EXPECT_THAT(store_.steps(), ElementsAre(30, 50, 60));
  EXPECT_EQ(store_.newest_complete().step, 50U);
  EXPECT_FALSE(fs::exists(file(50, "stage-0-of-2.safetensors.Xy12Ab")));
  EXPECT_TRUE(fs::exists(file(60, "stage-1-of-2.json")));
  store_.keep_last(1);
  EXPECT_THAT(store_.steps(), ElementsAre(50, 60));
  fs::remove(file(50, "stage-1-of-2.json"));
  store_.keep_last(1);  // removes nothing without a complete one
  EXPECT_THAT(store_.steps(), ElementsAre(50, 60));
  store_.clear_later_than(50);
  EXPECT_THAT(store_.steps(), ElementsAre(50));
}

TEST_F(Checkpoints, WithDamagedElementsAreSkippedWhenElementsAreChecked)
{
  write(10, 2);
  write(20, 2);
  const auto path = file(20, "stage-1-of-2.safetensors");
  std::string text = read_file(path);
  text.back() = static_cast<char>(text.back() ^ 1);
  write_file_atomically(path, text);
  EXPECT_EQ(store_.newest_complete().step, 20U);
  const auto newest = store_.newest_complete(CheckpointStore::Check::Elements);
  EXPECT_EQ(newest.step, 10U);
  EXPECT_TRUE(newest.damaged);
  EXPECT_THAT(newest.skipped, ElementsAre(HasSubstr("stage-1-of-2.safetensors: damaged: its CRC-32C is ")));
}

TEST_F(Checkpoints, ThatWereCompleteAreRenamedAndUnfinishedOnesRemoved)
{
  for (const std::uint64_t step : {10, 20, 30, 40}) write(step, 2);
  fs::remove(file(20, "stage-0-of-2.safetensors"));
  fs::remove(file(30, "stage-0-of-2.json"));
  write_file_atomically(file(40, "stage-0-of-2.json"), "{");
  EXPECT_TRUE(store_.newest_complete().damaged);
  fs::create_directories(folder_.path() / "checkpoints" / "step-00000040.damaged");  // from an earlier damage
  store_.clear_later_than(10);
  EXPECT_THAT(store_.steps(), ElementsAre(10));
  const auto aside = folder_.path() / "checkpoints";
  EXPECT_TRUE(fs::exists(aside / "step-00000020.damaged" / "stage-1-of-2.safetensors"));
  EXPECT_FALSE(fs::exists(aside / "step-00000030.damaged"));
  EXPECT_TRUE(fs::is_empty(aside / "step-00000040.damaged"));
  EXPECT_EQ(read_file(aside / "step-00000040.damaged-2" / "stage-0-of-2.json"), "{");
}

TEST_F(Checkpoints, ThatCannotBeReadAreNotReportedAsDamaged)
{
  write(10, 1);
  write(20, 1);
  const auto path = file(20, "stage-0-of-1.json");
  fs::remove(path);
  fs::create_symlink(path.filename(), path);
  EXPECT_THAT([&] { store_.newest_complete(); },
              ThrowsMessage<EnvironmentError>(HasSubstr("stage-0-of-1.json: Too many levels of symbolic links")));
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(store_.newest_complete().step, 10U);
}

TEST_F(Checkpoints, LeaveOtherFilesAlone)
{
  const std::vector<std::string> names = {"thesis.txt", "stage-notes.txt", "stage-0-of-1.json.original"};
  write(10, 1);
  write(20, 1);
  for (const std::uint64_t step : {1, 10, 30}) {
    fs::create_directories(store_.folder_of(step));
    for (const auto& name : names) write_file_atomically(file(step, name), "years of work");
    write_file_atomically(file(step, "stage-0-of-1.json.a1b2c3"), "left by a killed write");
  }
  fs::create_symlink(folder_.path(), store_.folder_of(40));
  store_.keep_last(1);
  store_.clear_later_than(20);
  for (const std::uint64_t step : {1, 10, 30}) {
    for (const auto& name : names) EXPECT_EQ(read_file(file(step, name)), "years of work");
    for (const auto* name : {"stage-0-of-1.json", "stage-0-of-1.json.a1b2c3"}) {
      EXPECT_FALSE(fs::exists(file(step, name)));
    }
  }
  EXPECT_TRUE(fs::is_symlink(store_.folder_of(40)));
}

TEST_F(Checkpoints, AreRefusedInAFile)
{
  folder_.write("file", "");
  EXPECT_THAT([&] { CheckpointStore(folder_.path() / "file").newest_complete(); },
              ThrowsMessage<InputError>(HasSubstr("is a file; name a folder")));
  EXPECT_THAT([&] { CheckpointStore(folder_.path() / "file").require_writable(); },
              ThrowsMessage<InputError>(HasSubstr("is a file; name a folder")));
}

TEST_F(Checkpoints, RequireAWritableFolderFirst)
{
  const CheckpointStore deep(folder_.path() / "deep" / "down");
  deep.require_writable();
  EXPECT_TRUE(fs::is_empty(deep.folder()));
  EXPECT_THAT([] { CheckpointStore("/proc/checkpoints").require_writable(); },
              ThrowsMessage<EnvironmentError>(HasSubstr("/proc/checkpoints: ")));
}

TEST_F(Checkpoints, AreWrittenInTheBackground)
{
  AsyncCheckpointWriter writer(store_);
  writer.write(snapshot_of(10, 0, 1));
  writer.finish();
  EXPECT_EQ(store_.newest_complete().step, 10U);
  writer.finish();
}

TEST_F(Checkpoints, ThatCannotBeWrittenAreReportedOnce)
{
  folder_.write("checkpoints", "a file in place of the folder");
  AsyncCheckpointWriter writer(store_);
  writer.write(snapshot_of(10, 0, 1));
  const auto names_the_fault = ThrowsMessage<EnvironmentError>(HasSubstr("checkpoints/step-00000010: Not a directory"));
  EXPECT_THAT([&] { writer.write(snapshot_of(20, 0, 1)); }, names_the_fault);
  writer.finish();  // reports it only once
  writer.write(snapshot_of(30, 0, 1));
  EXPECT_THAT([&] { writer.finish(); }, ThrowsMessage<EnvironmentError>(HasSubstr("Not a directory")));
}

TEST(CheckpointManifest, IsTheSameAfterWriteThenRead)
{
  const ManifestPart part{.step = 9'007'199'254'740'992,
                          .name = {.stage = 6, .stages = 7},
                          .first_layer = 2,
                          .last_layer = 2,
                          .run = R"({"b":[1,null],"a":"\"x\""})",
                          .size = 12,
                          .crc = 0xab,
                          .tensor_crc = {{"a\n", 0}, {"b", 0xffffffff}}};
  const auto text = manifest_to_text(part);
  const auto read = manifest_from_text(text, "manifest");
  EXPECT_EQ(manifest_to_text(read), text);
  EXPECT_EQ(read.run, part.run);
  EXPECT_EQ(read.tensor_crc, part.tensor_crc);
}

}  // namespace
}  // namespace isobar::exec::checkpoint_test
