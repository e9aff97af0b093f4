#include "cli/output_file.hpp"

#include "core/base/command_options.hpp"
#include "core/errors.hpp"

#include <unistd.h>
#include <cstdio>

namespace isobar::cli {

OutputFile::OutputFile(const std::string& name) : is_standard_output_(name == standard_output)
{
  if (!name.empty() && !is_standard_output_) file_.emplace(name);
}

void OutputFile::write(const std::string& content)
{
  if (is_standard_output_) print(content);
  if (!file_) return;
  file_->write(content);
  file_->keep();
}

void print(const std::string& text)
{
  if (std::fflush(stdout) != 0 || !write_all(STDOUT_FILENO, text)) {
    throw EnvironmentError("cannot write to standard output");
  }
}

}  // namespace isobar::cli
