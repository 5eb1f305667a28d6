// Converts each line of hexadecimal bytes: "8 BYTES" from UTF-8 to UTF-16 (big-endian), "16 BYTES" back.
#include "java_text.h"

#include <cstdio>
#include <iostream>

int main() {
  for (std::string kind, digits; std::cin >> kind && std::getline(std::cin, digits);) {
    std::string bytes;
    for (size_t i = 1; i + 1 < digits.size(); i += 2) bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    std::string converted;
    if (kind == "8") {
      for (const char16_t each : romou::app::utf16_of(bytes)) converted += {static_cast<char>(each >> 8), static_cast<char>(each & 0xff)};
    } else {
      std::u16string wide;
      for (size_t i = 0; i < bytes.size(); i += 2) wide += static_cast<char16_t>(static_cast<unsigned char>(bytes[i]) << 8 | static_cast<unsigned char>(bytes[i + 1]));
      converted = romou::app::utf8_of(wide);
    }
    for (const unsigned char byte : converted) std::printf("%02x", byte);
    std::printf("\n");
  }
}
