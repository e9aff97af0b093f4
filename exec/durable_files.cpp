#include "exec/durable_files.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

namespace isobar::exec {

void synchronise_folder(const std::filesystem::path& folder)
{
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool done = descriptor >= 0 && fsync(descriptor) == 0;
  const int fault = errno;
  if (descriptor >= 0) close(descriptor);
  if (!done && fault != EINVAL && fault != ENOTSUP) {
    throw EnvironmentError(fmt::format("{}: cannot be synchronised: {}", folder.string(), std::strerror(fault)));
  }
}

std::filesystem::path folder_of_file(const std::filesystem::path& file)
{
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

}  // namespace isobar::exec
