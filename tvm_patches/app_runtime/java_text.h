// SPDX-License-Identifier: Apache-2.0
//
// Text between C and Java. JNI's functions for UTF-8 take Java's own kind of it, in which other bytes end the process.
#ifndef ROMOU_APP_RUNTIME_JAVA_TEXT_H_
#define ROMOU_APP_RUNTIME_JAVA_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace romou::app {

inline constexpr char16_t kReplacement = 0xfffd;

/// Return UTF-8 as UTF-16. Bytes that are no UTF-8 become U+FFFD, as in Java and Python.
inline std::u16string utf16_of(std::string_view text) {
  std::u16string wide;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    int more = lead < 0x80 ? 0 : lead >= 0xc2 && lead < 0xe0 ? 1 : lead >= 0xe0 && lead < 0xf0 ? 2 : lead >= 0xf0 && lead < 0xf5 ? 3 : -1;
    // Longer forms than needed, halves of a pair, and what lies above Unicode are no UTF-8.
    unsigned least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80, most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    char32_t code = more <= 0 ? lead : lead & (0x3fu >> more);
    for (; more > 0 && i < text.size(); --more, least = 0x80, most = 0xbf) {
      const auto next = static_cast<unsigned char>(text[i]);
      if (next < least || next > most) break;
      code = code << 6 | (next & 0x3fu);
      ++i;
    }
    if (more != 0) {
      wide += kReplacement;
    } else if (code < 0x10000) {
      wide += static_cast<char16_t>(code);
    } else {
      wide += static_cast<char16_t>(0xd7c0 + (code >> 10));
      wide += static_cast<char16_t>(0xdc00 + (code & 0x3ff));
    }
  }
  return wide;
}

/// Return UTF-16 as UTF-8. Half a pair becomes U+FFFD. U+0000 becomes the two bytes that Java writes for it: it must not end a name early.
inline std::string utf8_of(std::u16string_view wide) {
  std::string text;
  for (size_t i = 0; i < wide.size(); ++i) {
    char32_t code = wide[i];
    const bool is_half = code >= 0xd800 && code < 0xe000;
    if (is_half && code < 0xdc00 && i + 1 < wide.size() && wide[i + 1] >= 0xdc00 && wide[i + 1] < 0xe000) {
      code = ((code - 0xd7c0) << 10) + (wide[++i] - 0xdc00);
    } else if (is_half) {
      code = kReplacement;
    }
    const int more = code != 0 && code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    text += static_cast<char>(more == 0 ? code : (0xff80u >> more & 0xffu) | code >> 6 * more);
    for (int left = more - 1; left >= 0; --left) text += static_cast<char>(0x80 | (code >> 6 * left & 0x3f));
  }
  return text;
}

}  // namespace romou::app

#endif  // ROMOU_APP_RUNTIME_JAVA_TEXT_H_
