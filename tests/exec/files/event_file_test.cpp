#include "exec/files/event_file.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace isobar::exec::event_file_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::TemporaryFolder;

template <typename Number>
Number number_at(const std::string& bytes, std::size_t at)
{
  Number number{};
  std::memcpy(&number, bytes.substr(at, sizeof number).data(), sizeof number);
  return number;
}

/// A second, bitwise implementation of iSCSI's CRC (RFC 3720) with TFRecord's mask.
std::uint32_t masked_crc32c(const std::string& bytes)
{
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

/// The records of a file; checks their checksums.
std::vector<std::string> records_of(const std::filesystem::path& file)
{
  const std::string bytes = read_file(file);
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = number_at<std::uint64_t>(bytes, at);
    records.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(number_at<std::uint32_t>(bytes, at + 8), masked_crc32c(bytes.substr(at, 8)));
    EXPECT_EQ(number_at<std::uint32_t>(bytes, at + 12 + length), masked_crc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

/// The event without its time.
std::string after_time(const std::string& event)
{
  EXPECT_EQ(event[0], '\x09');
  return event.substr(9);
}

TEST(EventFile, HasItsVersionItsStartAndAnEventForEachStep)
{
  const TemporaryFolder folder;
  EventFile file(folder.path() / "runs/one", 300);
  file.add(300, std::array{Scalar("loss", 0.5)});
  const auto records = records_of(file.path());
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(after_time(records[0]), std::string("\x10\x00\x1a\x0d"
                                                "brain.Event:2",
                                                17));
  EXPECT_EQ(after_time(records[1]), std::string("\x10\xac\x02\x3a\x02\x08\x01"));  // step 300, SessionLog START
  // Summary { value { tag: "loss" simple_value: 0.5 } }
  EXPECT_EQ(after_time(records[2]), std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x00\x3f", 18));
}

TEST(EventFile, SortsAfterExistingOnes)
{
  const TemporaryFolder folder;
  folder.write("events.out.tfevents.9000000000.host.1", "");
  folder.write("events.out.tfevents.none", "");
  folder.write("other", "");
  const std::string first = EventFile(folder.path(), 0).path().filename();
  const std::string second = EventFile(folder.path(), 5).path().filename();
  EXPECT_EQ(first.substr(0, 31), "events.out.tfevents.9000000001.");
  EXPECT_LT(first, second);
}

TEST(EventFile, SaysInOneLineWhereItCannotWrite)
{
  const TemporaryFolder folder;
  const auto file = folder.write("file", "");
  EXPECT_THAT([&] { EventFile(file, 0); },
              ThrowsMessage<EnvironmentError>(HasSubstr(file.string() + ": cannot write there: ")));
  EXPECT_THAT([&] { EventFile(file / "under", 0); },
              ThrowsMessage<EnvironmentError>(HasSubstr("under: cannot write there: ")));
}

}  // namespace
}  // namespace isobar::exec::event_file_test
