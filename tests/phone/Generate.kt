// Generates tokens twice, the second time after a rewind to the prompt: FOLDER TOKENS PROMPT...
import dev.romou.Model
import dev.romou.ModelException
import java.io.File

fun main(arguments: Array<String>) {
    val prompt = arguments.drop(2).map { it.toLong() }.toLongArray()
    Model(File(arguments[0])).use { model ->
        val first = model.decode(*prompt)
        for (start in 0..1) {
            println(generateSequence(first) { model.decode(it) }.take(arguments[1].toInt()).joinToString(","))
            model.rewind(prompt.size.toLong())
        }
        for (mistake in listOf({ model.decode(); Unit }, { model.rewind(-1) }, { model.run() })) {
            try { mistake() } catch (error: ModelException) { println("error ${error.code} ${error.message}") }
        }
    }
}
