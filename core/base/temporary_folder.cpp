#include "core/base/temporary_folder.hpp"

#include "core/errors.hpp"

#include <cstdlib>
#include <system_error>

namespace isobar {

TemporaryFolder::TemporaryFolder()
{
  std::error_code fault;
  std::string name = (std::filesystem::temp_directory_path(fault) / "isobar.XXXXXX").string();
  if (fault) throw EnvironmentError("TMPDIR: names no folder; temporary files need one");
  if (mkdtemp(name.data()) == nullptr) throw EnvironmentError(name, "cannot make a folder there");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder()
{
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace isobar
