#include "exec/files/durable_files.hpp"

#include "core/errors.hpp"
#include "exec/files/open_file.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace isobar::exec {

namespace {

/// Opens it for writing, which locks of NFS need, or for reading if it is another user's.
int open_lock_file(const std::filesystem::path& file)
{
  int descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno == EACCES) descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw EnvironmentError(fmt::format("{}: {}", shown_path(file), std::strerror(errno)));
  return descriptor;
}

}  // namespace

void synchronise_folder(const std::filesystem::path& folder)
{
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = descriptor >= 0 && fsync(descriptor) == 0;
  const int fault = errno;
  if (descriptor >= 0) close(descriptor);
  if (!done && fault != EINVAL && fault != ENOTSUP) {
    throw EnvironmentError(fmt::format("{}: cannot be synchronised: {}", shown_path(folder), std::strerror(fault)));
  }
}

std::filesystem::path folder_of_file(const std::filesystem::path& file)
{
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

FolderLock::FolderLock(const std::filesystem::path& folder, const std::function<void(const std::string&)>& warn)
    : descriptor_(open_lock_file(folder / ".isobar-lock"))
{
  constexpr std::chrono::milliseconds pause(50);
  constexpr int attempts = 100;
  for (int attempt = 0; flock(descriptor_, LOCK_EX | LOCK_NB) != 0; ++attempt) {
    const int fault = errno;
    if (fault != EWOULDBLOCK && fault != EINTR) {
      warn(
          fmt::format("{}: the file system has no locks (flock: {}), so no second run is kept from writing checkpoints "
                      "there; make sure that there is none",
                      shown_path(folder), std::strerror(fault)));
      return;
    }
    if (attempt == attempts) {
      close(descriptor_);
      throw InputError(shown_path(folder),
                       "another run is writing checkpoints there; stop it, or name another folder with --checkpoint");
    }
    std::this_thread::sleep_for(pause);
  }
}

FolderLock::~FolderLock()
{
  close(descriptor_);
}

}  // namespace isobar::exec
