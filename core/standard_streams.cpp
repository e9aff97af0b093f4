#include "core/standard_streams.hpp"

#include "core/errors.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <cstdio>

namespace isobar {

void open_standard_streams()
{
  int opened = open("/dev/null", O_RDWR);
  while (opened >= 0 && opened <= STDERR_FILENO) opened = dup(opened);
  if (opened > STDERR_FILENO) close(opened);
}

void say(const std::string& lines)
{
  std::fputs(("isobar: " + printable(lines) + "\n").c_str(), stderr);
}

}  // namespace isobar
