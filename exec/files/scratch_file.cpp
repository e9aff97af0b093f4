#include "exec/files/scratch_file.hpp"

#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/files/open_file.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace isobar::exec {

namespace {

/// Opens a new file without a name; less than 0, with errno, if that fails.
int open_nameless(const std::filesystem::path& folder)
{
  const int descriptor = open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return descriptor;
  // The file system has no such files. A process that is killed between these two leaves one with a name.
  std::string name = folder / "isobar-scratch-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

}  // namespace

std::filesystem::path scratch_folder(const std::filesystem::path& given)
{
  return given.empty() ? std::filesystem::temp_directory_path() : given;
}

ScratchFile::ScratchFile(const std::filesystem::path& folder, std::uint64_t size)
    : where_(shown_path(folder)), size_(size), descriptor_(open_nameless(folder))
{
  if (descriptor_ < 0) fail("cannot write there", errno);
  int error = 0;
  do {
    error = posix_fallocate(descriptor_, 0, static_cast<off_t>(size));
  } while (error == EINTR && !interrupted());
  if (error != 0) {
    close(descriptor_);
    throw_if_interrupted();
    fail(fmt::format("has no space for a file of {}", text_of(Bytes(static_cast<double>(size)))).c_str(), error);
  }
  // A file system that cannot do it refuses the flag here; given to `open`, it would leave the file behind.
  is_direct_ = fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) | O_DIRECT) == 0;
}

ScratchFile::~ScratchFile()
{
  close(descriptor_);
}

Bytes ScratchFile::capacity() const
{
  struct statvfs facts {};
  if (fstatvfs(descriptor_, &facts) != 0) fail("has an unknown size", errno);
  return Bytes(static_cast<double>(size_) + static_cast<double>(facts.f_bavail) * static_cast<double>(facts.f_frsize));
}

void ScratchFile::write(std::uint64_t offset, std::span<const std::byte> from)
{
  while (!from.empty()) {
    throw_if_interrupted();
    const ssize_t count = pwrite(descriptor_, from.data(), from.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("writing failed", errno);
    offset += static_cast<std::uint64_t>(count);
    from = from.subspan(static_cast<std::size_t>(count));
  }
}

void ScratchFile::read(std::uint64_t offset, std::span<std::byte> into) const
{
  while (!into.empty()) {
    throw_if_interrupted();
    const ssize_t count = pread(descriptor_, into.data(), into.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("reading failed", errno);
    if (count == 0)
      throw EnvironmentError(where_, "reading failed: the scratch file became shorter while it was in use");
    offset += static_cast<std::uint64_t>(count);
    into = into.subspan(static_cast<std::size_t>(count));
  }
}

void ScratchFile::flush()
{
  if (fdatasync(descriptor_) != 0) fail("writing failed", errno);
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
}

void ScratchFile::fail(const char* what, int error) const
{
  throw EnvironmentError(where_, fmt::format("{}: {}", what, std::strerror(error)));
}

}  // namespace isobar::exec
