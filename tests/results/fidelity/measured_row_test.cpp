#include "results/fidelity/measured_row.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace isobar::results::measured_row_test {
namespace {

using testing::ElementsAre;
using testing::Pair;
using testing_support::TemporaryFolder;

const std::string header =
    "set,row,role,group,platform,platform_overrides,workload,overrides,framework,pp,tp,dp,cp,ep,virtual_stages,zero,"
    "sequence_parallel,global_batch,micro_batch,schedule,recompute,layers,devices,plan,profiles,measured_s,"
    "measured_tolerance_fraction,measured_memory_bytes,memory_kind,reference_s,reference_memory_bytes,note\n";
const std::string full_row =
    "s,r,development,g,machines/m.yaml,nodes=4;count_T4=2,workloads/w.yaml,layers=24;hidden=64,megatron-lm-2021,3,"
    "2+2+4,8+8+4,1,1,2,1,1,512,16,interleaved,selective,8+8.5+7.5,0-3|4-7|8-15,p.json,a.json;../b.json,1.5,0.01,"
    "2e9,device,1.7,3e9,\"a note, with a comma\"\n";

std::vector<MeasuredRow> rows_of(const std::string& text)
{
  const TemporaryFolder folder;
  std::filesystem::current_path(folder.path());
  folder.write("f.csv", text);
  auto rows = read_measured_rows("f.csv");
  std::filesystem::current_path("/");
  return rows;
}

std::string fault_of(const std::string& text)
{
  const TemporaryFolder folder;
  std::filesystem::current_path(folder.path());
  folder.write("f.csv", text);
  auto message = message_of([] { read_measured_rows("f.csv"); });
  std::filesystem::current_path("/");
  return message;
}

/// The row above with other cells, by column.
std::string row_with(const std::map<std::string, std::string>& cells)
{
  const auto split = [](const std::string& line) {
    std::vector<std::string> pieces(1);
    bool quoted = false;
    for (const char character : line.substr(0, line.size() - 1)) {
      if (character == '"') quoted = !quoted;
      if (character == ',' && !quoted) {
        pieces.emplace_back();
      } else {
        pieces.back() += character;
      }
    }
    return pieces;
  };
  const auto columns = split(header);
  auto values = split(full_row);
  std::string line;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const auto found = cells.find(columns[i]);
    line += (i == 0 ? "" : ",") + (found == cells.end() ? values[i] : found->second);
  }
  return line + "\n";
}

TEST(MeasuredRow, HasTheColumnsOfItsFile)
{
  const auto rows = rows_of(header + full_row);
  ASSERT_EQ(rows.size(), 1U);
  const MeasuredRow& row = rows.front();
  EXPECT_EQ(row.file, "f.csv");
  EXPECT_EQ(row.line, 2);
  EXPECT_EQ(row.set, "s");
  EXPECT_EQ(row.role, RowRole::Development);
  EXPECT_EQ(row.platform, "machines/m.yaml");
  EXPECT_THAT(row.platform_overrides, ElementsAre(Pair("nodes", "4"), Pair("count_T4", "2")));
  EXPECT_EQ(row.pipeline_degree, 3U);
  EXPECT_THAT(row.tensor_degrees, ElementsAre(2, 2, 4));
  EXPECT_THAT(row.data_degrees, ElementsAre(8, 8, 4));
  EXPECT_EQ(row.virtual_stages, 2U);
  EXPECT_TRUE(row.sequence_parallel);
  EXPECT_EQ(row.micro_batch, 16U);
  EXPECT_EQ(row.recompute, Recomputation::Selective);
  EXPECT_THAT(row.blocks, ElementsAre(8, 8.5, 7.5));
  EXPECT_THAT(row.profiles, ElementsAre("a.json", "../b.json"));
  EXPECT_EQ(row.measured, Seconds(1.5));
  EXPECT_EQ(row.memory_kind, MemoryKind::Device);
  EXPECT_EQ(row.reference_memory, Bytes(3e9));
  EXPECT_EQ(row.note, "a note, with a comma");
}

TEST(MeasuredRow, NeedsNoTimeIfTheRunFailed)
{
  const auto rows = rows_of(header + row_with({{"role", "failed"}, {"measured_s", ""}}));
  EXPECT_EQ(rows.front().measured, std::nullopt);
}

TEST(MeasuredRow, NeedsNoTimeIfItsMemoryWasMeasured)
{
  EXPECT_EQ(rows_of(header + row_with({{"measured_s", ""}})).front().measured_memory, Bytes(2e9));
}

TEST(MeasuredRow, NeedsNothingIfItIsExcluded)
{
  const auto rows = rows_of(header + row_with({{"role", "excluded"}, {"platform", ""}, {"measured_s", ""}}));
  EXPECT_EQ(rows.front().role, RowRole::Excluded);
}

TEST(MeasuredRow, AllFaultsOfAFileAreReportedAtOnce)
{
  EXPECT_EQ(fault_of(header + row_with({{"zero", "4"}, {"role", "test"}}) + row_with({{"row", ""}})),
            "InputError f.csv:2: role: \"test\" is not known; write calibration, development, gate, derived, failed, "
            "excluded\nf.csv:2: zero: \"4\" is wrong; write a whole number from 0 to 3\n"
            "f.csv:3: row: is empty; name the row");
}

TEST(MeasuredRow, AFileWithOtherColumnsIsRefused)
{
  EXPECT_THAT(fault_of("set,row\ns,r\n"),
              testing::StartsWith("InputError f.csv:1: the columns are \"set,row\"; they must be set,row,role,group,"));
}

TEST(MeasuredRow, UnknownCellsAreNoneAndDegreesOne)
{
  const auto rows = rows_of(header + row_with({{"pp", ""},
                                               {"tp", ""},
                                               {"dp", ""},
                                               {"virtual_stages", ""},
                                               {"micro_batch", ""},
                                               {"recompute", ""},
                                               {"layers", ""},
                                               {"measured_memory_bytes", ""},
                                               {"memory_kind", ""},
                                               {"profiles", ""}}));
  const MeasuredRow& row = rows.front();
  EXPECT_THAT(row.tensor_degrees, ElementsAre(1));
  EXPECT_EQ(row.virtual_stages, std::nullopt);
  EXPECT_EQ(row.micro_batch, std::nullopt);
  EXPECT_EQ(row.recompute, std::nullopt);
  EXPECT_TRUE(row.blocks.empty());
  EXPECT_TRUE(row.profiles.empty());
}

TEST(MeasuredRow, BlocksMayBeOfEachChunkAndRepeat)
{
  const auto blocks_of = [](const std::string& cell) {
    return rows_of(header + row_with({{"pp", "2"}, {"tp", ""}, {"dp", ""}, {"virtual_stages", "3"}, {"layers", cell}}))
        .front()
        .blocks;
  };
  EXPECT_THAT(blocks_of("1+2*4+0"), ElementsAre(1, 2, 2, 2, 2, 0));
  EXPECT_THAT(blocks_of("4+5"), ElementsAre(4, 5));
}

TEST(MeasuredRow, ShardsMayHaveWholeExperts)
{
  EXPECT_FALSE(rows_of(header + row_with({{"ep", "8"}})).front().has_whole_experts);
  const auto rows = rows_of(header + row_with({{"ep", "8 etp 1"}}));
  EXPECT_TRUE(rows.front().has_whole_experts);
  EXPECT_EQ(rows.front().expert_degree, 8);
}

TEST(MeasuredRow, EveryFaultHasItsLineAndColumn)
{
  const auto fault_with = [](const std::map<std::string, std::string>& cells) {
    return fault_of(header + row_with(cells));
  };
  EXPECT_EQ(fault_of(header), "InputError f.csv:1: has no rows; write one below the header");
  EXPECT_EQ(fault_of(header + full_row + full_row),
            "InputError f.csv:3: row: \"r\" is the name of another row too; give each row its own");
  EXPECT_EQ(fault_with({{"role", "test"}}),
            "InputError f.csv:2: role: \"test\" is not known; write calibration, development, gate, derived, failed, "
            "excluded");
  EXPECT_EQ(fault_with({{"set", ""}}), "InputError f.csv:2: set: is empty; name the set of measurements");
  EXPECT_EQ(fault_with({{"tp", "2+2"}}),
            "InputError f.csv:2: tp: has 2 numbers; write one for each of the 3 stages of pp");
  EXPECT_EQ(fault_with({{"dp", "8+x+4"}}),
            "InputError f.csv:2: dp: \"x\" is wrong; write a whole number from 1 to 1048576");
  EXPECT_EQ(fault_with({{"layers", "8+-1+17"}}),
            "InputError f.csv:2: layers: \"-1\" is wrong; write a number from 0 to 1e15");
  EXPECT_EQ(fault_with({{"layers", "8+8*0+1"}}),
            "InputError f.csv:2: layers: \"0\" is wrong; write a whole number from 1 to 1048576");
  EXPECT_EQ(
      fault_with({{"ep", "8 etp 2"}}),
      "InputError f.csv:2: ep: \"etp 2\" is not known; write etp 1, or the number alone where tp divides experts, "
      "too");
  EXPECT_EQ(fault_with({{"zero", "4"}}), "InputError f.csv:2: zero: \"4\" is wrong; write a whole number from 0 to 3");
  EXPECT_EQ(fault_with({{"overrides", "layers"}}),
            "InputError f.csv:2: overrides: \"layers\" is not a setting; write key=value, several separated by ;");
  EXPECT_EQ(fault_with({{"measured_s", ""}, {"measured_memory_bytes", ""}}),
            "InputError f.csv:2: measured_s: is empty; a development row has a measured time or memory");
  EXPECT_EQ(fault_with({{"measured_s", "slow"}}),
            "InputError f.csv:2: measured_s: \"slow\" is wrong; write a number from 0 to 1e15");
  EXPECT_EQ(fault_with({{"measured_s", "0"}}), "InputError f.csv:2: measured_s: is below 1e-9; write seconds");
  EXPECT_EQ(
      fault_with({{"memory_kind", ""}}),
      "InputError f.csv:2: memory_kind: is empty; name the memory that was measured: allocated, reserved, device");
  EXPECT_EQ(fault_with({{"recompute", "block"}}),
            "InputError f.csv:2: recompute: \"block\" is not known; write none, selective, full, plan, or modules "
            "separated by a space: core_attn, layernorm, mla_up_proj, mlp, moe, moe_act, shared_experts");
  EXPECT_EQ(fault_with({{"recompute", "mlp full"}}).substr(0, 55),
            "InputError f.csv:2: recompute: \"full\" is not known; wri");
  EXPECT_EQ(fault_with({{"recompute", "modules"}}).substr(0, 58),
            "InputError f.csv:2: recompute: \"modules\" is not known; wri");
  EXPECT_EQ(fault_with({{"recompute", "moe_act mlp moe_act"}}),
            "InputError f.csv:2: recompute: \"moe_act\" is there twice; leave one out");
}

}  // namespace
}  // namespace isobar::results::measured_row_test
