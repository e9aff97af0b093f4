#include "core/files.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

namespace isobar {

TemporaryFile::TemporaryFile(std::filesystem::path target) : target_(std::move(target))
{
  std::error_code ignored;
  constexpr int most_links = 40;  // as Linux follows
  for (int link = 0; link < most_links && std::filesystem::is_symlink(target_, ignored); ++link) {
    target_ = target_.parent_path() / std::filesystem::read_symlink(target_, ignored);  // which need not be there
  }
  replaces_ = !std::filesystem::exists(target_, ignored) || std::filesystem::is_regular_file(target_, ignored);
  name_ = replaces_ ? target_.string() + ".XXXXXX" : target_.string();
  descriptor_ = replaces_ ? mkostemp(name_.data(), O_CLOEXEC) : open(name_.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail("cannot write there");
}

TemporaryFile::~TemporaryFile()
{
  if (descriptor_ >= 0) close(descriptor_);
  if (descriptor_ >= 0 && replaces_ && !kept_) unlink(name_.c_str());
}

void TemporaryFile::write(std::string_view content)
{
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor_, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write");
    content.remove_prefix(static_cast<std::size_t>(written));
  }
}

void TemporaryFile::keep()
{
  if (!replaces_) return;
  const mode_t mask = umask(0);
  umask(mask);
  if (fchmod(descriptor_, 0666 & ~mask) != 0 || fsync(descriptor_) != 0) fail("cannot write");
  if (rename(name_.c_str(), target_.c_str()) != 0) fail("cannot replace it");
  kept_ = true;
}

void TemporaryFile::fail(const char* what) const
{
  throw EnvironmentError(fmt::format("{}: {}: {}", target_.string(), what, std::strerror(errno)));
}

std::string read_file(const std::filesystem::path& file)
{
  if (std::filesystem::is_directory(file)) throw InputError(file.string(), "is a directory; name a file");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw InputError(file.string(), std::filesystem::exists(file) ? "cannot be read" : "no such file");
  }
  std::ostringstream content;
  content << stream.rdbuf();
  return content.str();
}

void write_file_atomically(const std::filesystem::path& file, std::string_view content)
{
  TemporaryFile temporary(file);
  temporary.write(content);
  temporary.keep();
}

std::string fingerprint(std::string_view content)
{
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char character : content) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3;
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace isobar
