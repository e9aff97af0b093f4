#pragma once

#include "core/errors.hpp"

#include <stdexcept>
#include <string>

namespace isobar {

/// The kind and message of the error that `call` throws, such as "InputError p.yaml: no such file" or, of a
/// std::logic_error, "bug a rank beyond the program's"; "no error" if it throws none.
template <typename Call>
std::string message_of(Call call)
{
  try {
    call();
  } catch (const InputError& error) {
    return std::string("InputError ") + error.what();
  } catch (const std::logic_error& error) {
    return std::string("bug ") + error.what();
  }
  return "no error";
}

}  // namespace isobar
