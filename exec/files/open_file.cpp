#include "exec/files/open_file.hpp"

#include "core/base/git_lfs.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>

namespace isobar::exec {

std::string shown_path(const std::filesystem::path& path)
{
  const std::string text = path.string();
  return shown(text, text.size());
}

OpenFile::OpenFile(const std::filesystem::path& file) : where_(shown_path(file))
{
  std::error_code ignored;
  const auto status = std::filesystem::status(file, ignored);
  if (std::filesystem::is_directory(status)) throw InputError(where_, "is a directory; name a file");
  if (!std::filesystem::exists(status)) throw InputError(where_, "no such file");
  if (!std::filesystem::is_regular_file(status)) throw InputError(where_, "is a device or pipe; name a file");
  descriptor_ = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0 && errno == EACCES) throw InputError(where_, "cannot be read");
  struct stat facts {};
  if (descriptor_ < 0 || fstat(descriptor_, &facts) != 0) fail(std::strerror(errno));
  size_ = static_cast<std::uint64_t>(facts.st_size);
  std::string begin(std::min<std::uint64_t>(size_, 64), '\0');
  read(0, std::as_writable_bytes(std::span(begin)));
  refuse_lfs_pointer(begin, where_);
}

OpenFile::~OpenFile()
{
  if (descriptor_ >= 0) close(descriptor_);
}

void OpenFile::read(std::uint64_t offset, std::span<std::byte> into) const
{
  constexpr std::size_t piece = std::size_t{1} << 26;
  while (!into.empty()) {
    throw_if_interrupted();
    const ssize_t count = pread(descriptor_, into.data(), std::min(into.size(), piece), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(std::strerror(errno));
    if (count == 0) fail("became shorter while it was in use");
    offset += static_cast<std::uint64_t>(count);
    into = into.subspan(static_cast<std::size_t>(count));
  }
}

void OpenFile::fail(const std::string& what) const
{
  throw EnvironmentError(where_ + ": " + what);
}

}  // namespace isobar::exec
