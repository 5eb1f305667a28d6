package dev.romou.sample

import dev.romou.Model
import java.text.SimpleDateFormat
import java.util.Date
import java.util.Locale
import java.util.TimeZone

/**
 * Time runs on zeros, and return JSON that `romou report` and `romou compare` read, as romou_bench --json prints it.
 * holdMs: the model runs for so long before each round, so that the clock is up.
 */
fun bench(model: Model, name: String, holdMs: Int = 40, repeats: Int = 10): String {
    for (input in model.inputs) model.set(input.name, Model.buffer(input.bytes))
    model.run()
    val rounds = List(3) {
        val until = System.nanoTime() + 1_000_000L * holdMs
        while (System.nanoTime() < until) model.run()
        List(repeats) {
            val start = System.nanoTime()
            model.run()
            (System.nanoTime() - start) / 1e6
        }
    }
    val time = SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss'Z'", Locale.ROOT).also { it.timeZone = TimeZone.getTimeZone("UTC") }
    // A text of `about`, with its quotes.
    fun told(key: String) = Regex("\"$key\":(\"(?:[^\"\\\\]|\\\\.)*\")").find(model.about)?.groupValues?.get(1) ?: "\"\""
    val device = listOf("kind" to "kind", "name" to "device", "driver" to "driver", "platform" to "platform")
    return """{"kind": "romou bench", "schema": 2, "romou": "", "tvm": "", "time": "${time.format(Date())}", "operators": [], "module": null,
        "model": "$name", "target": ${told("target")}, "device": {${device.joinToString { (field, key) -> "\"$field\": ${told(key)}" }}},
        "about": ${model.about}, "model_times_ms": $rounds, "reference_times_ms": []}"""
}
