#include "core/base/git_lfs.hpp"

#include "core/errors.hpp"

namespace isobar {

void refuse_lfs_pointer(std::string_view begin, const std::string& name)
{
  if (!begin.starts_with("version https://git-lfs.github.com/spec/")) return;
  throw InputError(name, "is a pointer of git-lfs, not the file itself; fetch the file with: git lfs pull");
}

}  // namespace isobar
