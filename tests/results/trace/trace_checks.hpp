#pragma once

#include "core/errors.hpp"
#include "core/program/program.hpp"
#include "results/trace/recorded_program.hpp"
#include "results/trace/trace_file.hpp"
#include "tests/results/trace/two_stages.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

/// Checks of what is read from a trace.
namespace isobar::results {

/// The message of the fault that `read` throws for a trace; "none" if it throws none.
template <typename Read>
std::string fault_in(const WrittenTrace& file, Read read)
{
  try {
    read(read_trace(file.name()));
    return "none";
  } catch (const InputError& error) {
    return error.what();
  }
}

inline std::string fault_of_recorded_program(const WrittenTrace& file)
{
  return fault_in(file, [](const TraceFile& trace) { recorded_program(trace); });
}

/// Expects the channels, the lanes and their instructions to be those of the program that was executed.
inline void expect_same_program(const Program& recorded, const Program& executed)
{
  ASSERT_EQ(recorded.ranks(), executed.ranks());
  ASSERT_EQ(recorded.channels().size(), executed.channels().size());
  for (std::size_t i = 0; i < executed.channels().size(); ++i) {
    EXPECT_EQ(recorded.channels()[i].ends, executed.channels()[i].ends);
  }
  for (std::size_t rank = 0; rank < executed.ranks(); ++rank) {
    ASSERT_EQ(recorded.lanes(rank).size(), executed.lanes(rank).size());
    for (LaneId lane = 0; lane < executed.lanes(rank).size(); ++lane) {
      EXPECT_EQ(recorded.lanes(rank)[lane].name, executed.lanes(rank)[lane].name);
      EXPECT_EQ(recorded.lanes(rank)[lane].channel, executed.lanes(rank)[lane].channel);
      ASSERT_EQ(recorded.length(rank, lane), executed.length(rank, lane));
      for (std::uint64_t position = 0; position < executed.length(rank, lane); ++position) {
        const auto expected = executed.at(rank, lane, position);
        const auto found = recorded.at(rank, lane, position);
        EXPECT_EQ(found.opcode, expected.opcode);
        EXPECT_EQ(found.payload, expected.payload);
        EXPECT_TRUE(std::equal(found.waits.begin(), found.waits.end(), expected.waits.begin(), expected.waits.end()));
      }
    }
  }
}

}  // namespace isobar::results
