#include "exec/files/event_file.hpp"

#include "core/errors.hpp"
#include "exec/files/crc32c.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <system_error>

namespace isobar::exec {

namespace {

constexpr std::string_view event_file_prefix = "events.out.tfevents.";

/// Lowest byte first, as protocol buffers and TFRecords store numbers.
template <typename Number>
std::string little_endian(Number number)
{
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

/// A number in protocol buffers: seven bits per byte, lowest first; all bytes but the last have the highest bit set.
std::string varint(std::uint64_t number)
{
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(number | 0x80);
  bytes += static_cast<char>(number);
  return bytes;
}

enum class WireType : std::uint64_t { Varint = 0, Bits64 = 1, Bytes = 2, Bits32 = 5 };

std::string key(std::uint64_t field, WireType type)
{
  return varint(field << 3 | static_cast<std::uint64_t>(type));
}

std::string bytes_field(std::uint64_t field, std::string_view content)
{
  return key(field, WireType::Bytes) + varint(content.size()) + std::string(content);
}

/// An Event at the current time; `what` is one of its fields.
std::string event_of(std::uint64_t step, const std::string& what)
{
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return key(1, WireType::Bits64) + little_endian(now.count()) + key(2, WireType::Varint) + varint(step) + what;
}

/// CRC-32C, masked as in record_writer.cc, so that checksums of data that contains checksums remain strong.
std::uint32_t masked_crc(std::string_view bytes)
{
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8;
}

/// The time in a new file's name, in seconds: now, or one second after the latest existing file's.
std::uint64_t second_of_name(const std::filesystem::path& folder)
{
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  auto second = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::uint64_t existing = 0;
    if (!name.starts_with(event_file_prefix)) continue;
    const char* digits = name.data() + event_file_prefix.size();
    const auto [end, fault] = std::from_chars(digits, name.data() + name.size(), existing);
    if (fault == std::errc() && end == digits + 10) second = std::max(second, existing + 1);
  }
  return second;
}

std::string host_name()
{
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, std::uint64_t first_step)
{
  try {
    std::filesystem::create_directories(folder);
    path_ = folder / fmt::format("{}{:010}.{}.{}", event_file_prefix, second_of_name(folder), host_name(), getpid());
  } catch (const std::filesystem::filesystem_error& error) {
    throw EnvironmentError(
        fmt::format("{}: cannot write there: {}", shown(folder.string(), 300), error.code().message()));
  }
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (!file_) {
    throw EnvironmentError(
        fmt::format("{}: cannot write there: {}", shown(folder.string(), 300), std::strerror(errno)));
  }
  constexpr std::uint64_t start = 1;  // SessionLog.START
  write(event_of(0, bytes_field(3, "brain.Event:2")));
  write(event_of(first_step, bytes_field(7, key(1, WireType::Varint) + varint(start))));
}

void EventFile::add(std::uint64_t step, std::span<const Scalar> scalars)
{
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    const std::string simple_value = key(2, WireType::Bits32) + little_endian(static_cast<float>(value));
    summary += bytes_field(1, bytes_field(1, tag) + simple_value);
  }
  write(event_of(step, bytes_field(5, summary)));
}

void EventFile::write(const std::string& event)
{
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  file_ << length << little_endian(masked_crc(length)) << event << little_endian(masked_crc(event)) << std::flush;
  if (!file_) throw EnvironmentError(shown(path_.string(), 300) + ": cannot be written; is the disk full?");
}

}  // namespace isobar::exec
