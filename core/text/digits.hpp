#pragma once

namespace isobar {

/// Whether a character is an ASCII digit, whatever the locale is.
inline bool is_digit(char character)
{
  return character >= '0' && character <= '9';
}

}  // namespace isobar
